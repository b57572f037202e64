"""Where work is carried out: on this machine, or on the nodes of a Ray cluster; nothing above this room knows which."""
