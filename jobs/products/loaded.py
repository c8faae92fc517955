"""Every product's module, imported: by workers that warm up, and by a driver while its JVM starts."""

from importlib import import_module

from jobs.products.registry import PRODUCTS

for _product in PRODUCTS:
    import_module(_product.module)
