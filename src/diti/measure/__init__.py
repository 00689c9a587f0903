"""What `diti probe`, `counterfactuals` and `analyze` run: models and data in, one record and figures out."""
