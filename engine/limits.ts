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

/** Keys, values and logits of prompts that later rows may share; some thousand short prompts of a small model. */
export const promptCacheBytesMax = 256 * mebibyte;

/** Below this, steps take less time than opening a session for each version. */
export const packedParametersMin = 2_000_000;

/**
 * Largest run (parameters times positions) that the calling thread computes itself: it blocks that thread for one to
 * two milliseconds.
 */
export const workHereMax = 64_000_000;

/** Weights that a sampler packs for a version, beside the version itself. */
export const packedWeightBytesMax = 1024 * mebibyte;

/** Default of padded positions (rows × width) in one forward and backward run. */
export const trainPositionsMax = 16_384;

/** Bytes that a micro-batch's layers keep for the gradient; a larger batch is cut into more micro-batches. */
export const activationBytesMax = 1536 * mebibyte;

/**
 * Logits (positions with loss × vocabulary) computed at once while training: 128 MiB, of which a loss and its gradient
 * hold five or six copies. Larger batches pass the output layer in parts.
 */
export const trainLogitsMax = 32 * mebibyte;

/** Rows of one training batch: a bug guard, not a tuning knob. */
export const trainRowsMax = 1 << 20;

/** A safetensors header is JSON, about 120 bytes a tensor; read and checked it takes ten times that of memory. */
export const safetensorsHeaderBytesMax = 32 * mebibyte;

/**
 * Tensors of one file: the largest mixtures of experts have some ten thousand in all. Checking this many takes two
 * seconds.
 */
export const safetensorsTensorsMax = 65_536;

/** A GGUF header holds the tokenizer: some megabytes for 150,000 tokens and as many merges. */
export const ggufHeaderBytesMax = 128 * mebibyte;

/** Tensors of a GGUF file, as of a safetensors file. */
export const ggufTensorsMax = safetensorsTensorsMax;

/** Named values of a GGUF file, and entries of a list: vocabularies have some hundred thousand tokens. */
export const ggufEntriesMax = 4_000_000;

/** Entries in all lists of a header: tokens, scores, types and merges of the largest vocabularies are about two million. */
export const ggufListedMax = 8_000_000;

/** Steps of a chat template, some seconds: it takes some hundred a message, and its texts count as well. */
export const templateWorkMax = 8_000_000;

/** Bytes of texts and lists that rendering may create. A long conversation has about a megabyte, which a template copies a few times. */
export const templateBytesMax = 256 * 1024 * 1024;

/** Nesting of template parts, and so of macro calls. Schemas of tools need some tens of levels. */
export const templateDepthMax = 400;

/** Characters in a template. The longest templates of models have about 20,000. */
export const templateCharactersMax = 1_000_000;

/** Numbers that `range` of a chat template gives; templates count messages by it. */
export const templateRangeMax = 100_000;

/**
 * Time that a tokenizer with its own regular expression may take for one text; the longest text takes about a second.
 */
export const tokenizerMs = 10_000;

/** Part of the machine's memory a model may claim; the rest is for activations, the system and everyone else. */
export const memoryShareMax = 0.7;

/** Parameters of one model. They share one array, and this is the longest array of floats in Node. */
export const parametersMax = 2 ** 32;

/** Body of one HTTP request; 64 MiB is about ten million token ids. */
export const requestBodyBytesMax = 64 * mebibyte;

/** Bodies of all requests that are read or answered at once; a client beyond it gets 429. */
export const bodyBytesInFlightMax = 4 * requestBodyBytesMax;

/** Nesting of a body. A tool's JSON schema may have a dozen levels. */
export const jsonDepthMax = 64;

/** Strings, lists and objects of a body, about 100 bytes each once parsed; 65,536 prompts need a quarter. Numbers are free, so token ids are. */
export const jsonNodesMax = 1 << 18;

/** Messages of a conversation, tools it may offer or call in a message, and parts of a message's text. */
export const chatMessagesMax = 4096;
export const chatToolsMax = 128;
export const contentPartsMax = 1024;

/** Stop strings of a request and their length; the end of every text is compared with each of them. */
export const stopStringsMax = 16;
export const stopStringCharactersMax = 256;

/** Stop token ids, and tokens with a bias: a million of them would cost every step of everyone's batch. */
export const stopTokenIdsMax = 1024;
export const logitBiasTokensMax = 1024;

/** Characters of a prompt per position of the model; apart from runs of spaces, no text has more per token. */
export const promptCharactersPerPosition = 32;

/** Completions of one HTTP request (prompts × n). */
export const requestChoicesMax = 65_536;

/** Tokens one HTTP request may ask for (choices × max_tokens). Few choices come to their max_tokens; if all do, the answer may be too long for a text. */
export const requestTokensMax = 1 << 24;

/** Token ids looked at before a request is sampled: its choices × (prompt, allowed and biased tokens). */
export const requestCheckedTokensMax = 1 << 25;

/** Choices of one stream; each has chunks of its own. */
export const streamChoicesMax = decodeRowsMax;

/** Characters of one /tokenize request; about a second. */
export const tokenizeCharactersMax = 1 << 20;

/** Prompt and completion tokens of all requests in progress, 24 bytes each while they are sampled. */
export const tokensInFlightMax = 1 << 26;

/** A client that has read nothing of its answer for this long is cut off, so that it does not keep it in memory. */
export const stalledReaderMs = 60_000;

/** A request must have arrived within these times: headers, and all of it. */
export const headersTimeoutMs = 20_000;
export const requestTimeoutMs = 120_000;

/** Open connections; more are closed at once. */
export const connectionsMax = 8192;

/** Lines about refused requests that are logged per second; the rest is counted. */
export const refusalLinesPerSecondMax = 10;

/** Requests that may wait for a batch; a client beyond it gets 429 and may ask again. */
export const waitingRequestsMax = 4096;
