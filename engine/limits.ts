/** Bounds of the engine. Each is a number with a reason; relations between them are asserted beside them. */

const mebibyte = 1024 * 1024;

/** Rotary tables are constants of a graph, 8 bytes per position and rotary pair: 16 MiB at a head size of 128. */
export const contextPositionsMax = 32_768;

/** Rows decoded together. Above this a step's activations leave the cache and a waiting request waits too long. */
export const decodeRowsMax = 1024;

/** Positions of one prefill run (rows × padded length); bounds its activations, not the number of requests. */
export const prefillPositionsMax = 16_384;

/** Bytes of keys and values of one decode batch; rows beyond it wait. The cache may hold twice that while it grows. */
export const keyValueBytesMax = 1024 * mebibyte;

/** Padded positions (rows × width) of one forward and backward run unless the caller asks for fewer. */
export const trainPositionsMax = 16_384;

/** Rows of one training batch: a bug guard, not a tuning knob. */
export const trainRowsMax = 1 << 20;

/** A safetensors header is JSON; the format's reference implementation refuses more than 100 MB as well. */
export const safetensorsHeaderBytesMax = 100_000_000;

/** Part of the machine's memory a model may claim; the rest is for activations, the system and everyone else. */
export const memoryShareMax = 0.7;

/** Body of one HTTP request; 64 MiB is about ten million token ids. */
export const requestBodyBytesMax = 64 * mebibyte;

/** Completions of one HTTP request (prompts × n). */
export const requestChoicesMax = 65_536;

/** Requests that may wait for a batch; a client beyond it gets 429 and may ask again. */
export const waitingRequestsMax = 4096;
