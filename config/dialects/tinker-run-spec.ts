import { keyOf } from '../model-access.ts';
import type { RunSpec } from '../run-spec.ts';
import {
  hostedTinkerKey,
  hostedTinkerUrl,
  tinkerLoraAlpha,
  type TinkerInferenceSpec,
  type TinkerTrainerSpec,
} from '../tinker-spec.ts';
import { defaultLoraRank, loraModules, type RatchetConfig } from './ratchet.ts';

type Written = Pick<RatchetConfig, 'trainer' | 'inference' | 'lora'>;

/** What a server without a `url` is: the hosted service; one of one's own is SkyRL unless the file says otherwise. */
function serverOf({ trainer }: Written): Pick<TinkerTrainerSpec, 'url' | 'apiKeyVar' | 'server'> {
  const { url = hostedTinkerUrl, api_key_var, server = url === hostedTinkerUrl ? 'tinker' : 'skyrl' } = trainer;
  const usualKey = server === 'tinker' ? hostedTinkerKey : null;
  return { url, apiKeyVar: api_key_var === undefined ? usualKey : (keyOf(api_key_var)?.variable ?? null), server };
}

export function tinkerTrainerSpec(config: Written): TinkerTrainerSpec {
  const { base_model, loss_reduction, checkpoint_ttl } = config.trainer;
  const at = serverOf(config);
  return {
    kind: 'tinker',
    ...at,
    baseModel: base_model ?? null,
    reduction: loss_reduction ?? (at.server === 'tinker' ? 'sum' : 'sequence_mean'),
    checkpointTtlS: checkpoint_ttl ?? null,
  };
}

/** The server that trains also samples. */
export function tinkerInferenceSpec(config: Written): TinkerInferenceSpec {
  const { timeout: timeoutS, max_concurrent: maxConcurrent } = config.inference;
  return { kind: 'tinker', ...serverOf(config), timeoutS, maxConcurrent };
}

/** There are adapters only, of one scale. */
export function tinkerLoraSpec({ lora }: Written): NonNullable<RunSpec['lora']> {
  const { r = defaultLoraRank, target_modules = [...loraModules] } = lora ?? {};
  return { r, alpha: tinkerLoraAlpha, dropout: 0, targetModules: target_modules };
}
