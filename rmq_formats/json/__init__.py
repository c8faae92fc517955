"""Texts in JSON, as far as their bytes alone say what an exact reader must look at."""
