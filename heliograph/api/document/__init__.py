"""The API's documentation: the OpenAPI document, its viewer, the error pages and the guide."""
