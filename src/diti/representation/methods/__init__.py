"""The methods of the paper: a file each, over one loop, and the table that knows them."""
