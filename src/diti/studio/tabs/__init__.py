"""What stands on the page: a file per tab."""
