"""Typed tables of message bodies, and dead letters for bodies that do not fit."""
