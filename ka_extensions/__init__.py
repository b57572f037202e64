"""How the loop stays stable over many rounds: pure logic that imports nothing else of ours."""
