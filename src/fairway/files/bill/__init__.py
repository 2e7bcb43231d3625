"""Read a cloud provider's bill from CSV."""
