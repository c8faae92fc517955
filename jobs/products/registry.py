"""What runs produce: every product, in the order of its step in a run."""

from jobs.products import messages
from jobs.products.index import product as index
from jobs.products.queues import product as queues

PRODUCTS = (messages.PRODUCT, queues.PRODUCT, index.PRODUCT)
NAMES = frozenset(product.name for product in PRODUCTS)  # what `--tables` chooses from
