import { HttpError } from './http-error.ts';
import { shortened } from './json.ts';

/** Parameters of OpenAI's and vLLM's APIs that are honoured at these values only; the first is the default. */
const fixedValues = new Map<string, readonly unknown[]>(
  Object.entries({
    add_generation_prompt: [true],
    audio: [null],
    bad_words: [null, []],
    best_of: [1],
    chat_template: [null],
    chat_template_kwargs: [null, {}],
    continue_final_message: [false],
    detokenize: [true, false],
    documents: [null, []],
    echo: [false],
    extra_args: [null, {}],
    features: [null, {}],
    flat_logprobs: [false],
    function_call: [null, 'none', 'auto'],
    functions: [null, []],
    guided_choice: [null],
    guided_grammar: [null],
    guided_json: [null],
    guided_regex: [null],
    kv_transfer_params: [null, {}],
    length_penalty: [1],
    logits_processors: [null, []],
    modalities: [null, ['text']],
    parallel_tool_calls: [null, true, false],
    prediction: [null],
    priority: [0],
    prompt_embeds: [null],
    prompt_logprobs: [null],
    response_format: [null, { type: 'text' }],
    spaces_between_special_tokens: [true],
    stream: [false],
    stream_options: [null],
    structured_outputs: [null],
    suffix: [null, ''],
    tool_choice: [null, 'none', 'auto'],
    tools: [null, []],
    top_logprobs: [null, 0],
    truncate_prompt_tokens: [null],
    use_beam_search: [false],
    vllm_xargs: [null, {}],
  }),
);

/** Keys that by their definition change nothing about the answer. */
const inertKeys = new Set([
  'cache_salt',
  'include_reasoning',
  'metadata',
  'prompt_cache_key',
  'request_id',
  'safety_identifier',
  'service_tier',
  'store',
  'user',
]);

/** Unsupported parameters are refused by name, so that no run trains on samples drawn otherwise than requested. */
export function refuseUnhonoured(body: object, honoured: ReadonlySet<string>, path = ''): void {
  for (const [key, value] of Object.entries(body)) {
    if (honoured.has(key) || inertKeys.has(key)) continue;
    const param = path + shortened(key, 100);
    const allowed = honouredValues(key);
    if (!allowed) throw new HttpError(400, `Unknown parameter "${param}". Leave it out.`, { param });
    if (isOneOf(value, allowed)) continue;
    const message = `"${param}" is not supported by this server except as ${JSON.stringify(allowed[0])}. Leave it out.`;
    throw new HttpError(400, message, { param, code: 'unsupported_parameter' });
  }
}

/** Values at which a parameter without support may be sent; undefined = nothing is known of it. */
export function honouredValues(key: string): readonly unknown[] | undefined {
  return fixedValues.get(key);
}

/** null stands for the default, which is always allowed. */
export function isOneOf(value: unknown, allowed: readonly unknown[]): boolean {
  return value === null || allowed.some((fixed) => JSON.stringify(fixed) === JSON.stringify(value));
}
