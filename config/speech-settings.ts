import type { RunSpec } from './run-spec.ts';
import { isTable } from './tables.ts';

/** vLLM's names of the parsers that a config chooses, absent where the chat template decides. */
export interface SpeechSettings {
  readonly tools?: string;
  readonly reasoning?: string;
}

export function speechSettingsOf({ later, inference }: Pick<RunSpec, 'later' | 'inference'>): SpeechSettings {
  const own = inference.kind === 'vllm' ? inference.vllm.args : later['inference.vllm'];
  const server = isTable(own) ? own : {};
  const [tools, reasoning] = [server['tool_call_parser'], server['reasoning_parser']];
  return {
    ...(typeof tools === 'string' ? { tools } : {}),
    ...(typeof reasoning === 'string' ? { reasoning } : {}),
  };
}
