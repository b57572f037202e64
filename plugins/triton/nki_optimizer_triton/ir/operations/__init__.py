"""What operations do to arrays: element by element, in memory, all lanes to one."""
