import { vllmArgumentsOf } from '../gpu-settings.ts';
import type { RunSpec } from '../run-spec.ts';

/** vLLM's names of the parsers that a config chooses, absent where the chat template decides. */
interface SpeechSettings {
  readonly tools?: string;
  readonly reasoning?: string;
}

export function speechSettingsOf(run: Pick<RunSpec, 'requested' | 'inference'>): SpeechSettings {
  const { tool_call_parser: tools, reasoning_parser: reasoning } = vllmArgumentsOf(run);
  return {
    ...(typeof tools === 'string' ? { tools } : {}),
    ...(typeof reasoning === 'string' ? { reasoning } : {}),
  };
}
