"""What is told: records and the reports made from them."""
