"""The tables, a module each or a family: every `TableSpec` in a module's TABLES is one."""
