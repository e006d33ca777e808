"""`python -m surefoot.server` is the `surefoot` command."""

from .cli import main

if __name__ == "__main__":
    main()
