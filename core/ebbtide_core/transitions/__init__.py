"""How one event passes through the core: it is checked for news, changes the state, and has consequences."""
