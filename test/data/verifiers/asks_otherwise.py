"""A package that asks for another version than its Python has (`asks_otherwise-1.0.dist-info`)."""

from toy_single import load_environment

__all__ = ["load_environment"]
