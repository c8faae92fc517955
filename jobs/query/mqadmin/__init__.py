"""mqadmin's own command lines and texts, release by release."""
