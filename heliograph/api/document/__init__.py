"""What the API says of itself: the OpenAPI document, its viewer, the pages of errors and the guide."""
