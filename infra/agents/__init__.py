"""The program for agents: what each tool takes, a process for each call, and a server of the Model Context Protocol."""
