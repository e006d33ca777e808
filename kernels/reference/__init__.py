"""The reference backend: plain torch in float32, one op at a time. The oracle of the tests; never clever."""
