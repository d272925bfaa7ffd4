"use strict";

// No validator: it would send the document to somebody else's server.
SwaggerUIBundle({
  url: "/v1/openapi.json",
  dom_id: "#viewer",
  deepLinking: true,
  displayOperationId: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
});
