"""Measurements that need the engine's insides: exact verifies, recorded speculation, time by kind of operation."""
