import { baseUrl, keyVariable, variableName } from '../models/model-access.ts';
import { hostedTinkerKey, hostedTinkerUrl, TinkerTrainerSpec } from '../models/tinker-spec.ts';
import { choice, text, whole } from '../toml/values.ts';
import { setting, type WrittenIn } from './setting.ts';

export { TinkerTrainerSpec };

/** The server of kind "tinker", which samples as well. */
export const tinker = {
  url: setting(baseUrl(), 'of kind "tinker": where the server is, before `/api/v1`; the hosted service when missing'),
  api_key_var: setting(
    variableName(),
    'the name of the environment variable with its key; `TINKER_API_KEY` for the hosted service, none for SkyRL',
  ),
  server: setting(
    choice('tinker', 'skyrl'),
    'what it is: the hosted service (`tinker`) or SkyRL; by its `url` when missing',
  ),
  base_model: setting(text(), 'what the server calls the model; the only one it has when missing'),
  loss_reduction: setting(
    choice('sum', 'sequence_mean'),
    'what the server makes of the losses of tokens; their sum on the hosted service, the mean per sequence on SkyRL. Whatever it is, the gradient is the one that `aggregation` asks for',
  ),
  /** The hosted service accepts an hour to ten years. */
  checkpoint_ttl: setting(whole(1), 'seconds after which the server may delete a checkpoint; never when missing'),
};

interface WithTinker {
  readonly trainer: WrittenIn<typeof tinker>;
}

/** Without a `url` the server is the hosted service; a server at another address is SkyRL by default. */
export function tinkerServerOf({ trainer }: WithTinker): Pick<TinkerTrainerSpec, 'url' | 'apiKeyVar' | 'server'> {
  const { url = hostedTinkerUrl, api_key_var, server = url === hostedTinkerUrl ? 'tinker' : 'skyrl' } = trainer;
  return { url, apiKeyVar: keyVariable(api_key_var, server === 'tinker' ? hostedTinkerKey : null), server };
}

export function tinkerTrainerSpec(config: WithTinker): TinkerTrainerSpec {
  const { base_model, loss_reduction, checkpoint_ttl } = config.trainer;
  const at = tinkerServerOf(config);
  return {
    kind: 'tinker',
    ...at,
    baseModel: base_model ?? null,
    reduction: loss_reduction ?? (at.server === 'tinker' ? 'sum' : 'sequence_mean'),
    checkpointTtlS: checkpoint_ttl ?? null,
  };
}
