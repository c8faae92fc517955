"""mqadmin's command lines and output, by release."""
