"""Imports every product's module, for workers that warm up, and for a driver while its JVM starts."""

from importlib import import_module

from jobs.products.registry import PRODUCTS

for _product in PRODUCTS:
    import_module(_product.module)
