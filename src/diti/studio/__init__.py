"""`diti serve`: a page on which a representation can be seen and edited with the mouse."""
