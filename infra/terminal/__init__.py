"""What people see: the live view, plain lines, the report at the end."""
