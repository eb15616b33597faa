import { RatchetError } from '../../../core/errors.ts';

/** Words of servers for a turn that its token limit ended. Every other word means that the turn ended by itself. */
const limits = new Set([
  'length',
  'length_limit',
  'max_tokens',
  'max_token',
  'max_new_tokens',
  'max_output_tokens',
  'max_completion_tokens',
  'max_length',
  'model_length',
  'model_context_window_exceeded',
  'token_limit',
  'error_limit',
]);

/** Words of servers for a turn that failed before its end. */
const failures = new Set(['error', 'network_error', 'internal_error', 'server_error', 'timeout', 'cancelled']);

/**
 * How a turn ended. A server's own word only matters if it means truncation. Throws `InferenceUnavailable` if the
 * server aborted the generation: `abort`, or an error before any output.
 */
export function finishOf(
  given: unknown,
  { root, hasAnswer }: { readonly root: string; readonly hasAnswer: boolean },
): 'stop' | 'length' {
  const word = wordOf(given);
  if (limits.has(word)) return 'length';
  if (word === 'abort' || (failures.has(word) && !hasAnswer)) {
    throw new RatchetError(
      'InferenceUnavailable',
      `${root} gave a generation up before its end (finish_reason "${word}").`,
    );
  }
  return 'stop';
}

/** SGLang's is an object with a type; some servers write constants of Google or Cohere. */
function wordOf(given: unknown): string {
  const word = typeof given === 'object' && given !== null ? (given as { readonly type?: unknown }).type : given;
  return typeof word === 'string'
    ? word
        .trim()
        .toLowerCase()
        .replace(/^finish_reason_/, '')
    : '';
}
