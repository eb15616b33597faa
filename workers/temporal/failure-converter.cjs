// The SDK requires this file by its path, in the worker as in the workflow bundle, so it is CommonJS.
const { DefaultFailureConverter } = require('@temporalio/common');

/** Puts messages and stack traces of failures into a payload, so that the codec encrypts them like any other. */
exports.failureConverter = new DefaultFailureConverter({ encodeCommonAttributes: true });
