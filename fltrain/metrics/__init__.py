"""What is measured beside accuracy and loss."""
