"""Answers mqadmin's queries from a store or a lake, without a JVM or a broker; `source` is the interface of both."""
