"""The pages. A module has all about one: what its address asks for, the facts that it shows, its routes and streams."""
