import { present } from '../../core/present.ts';
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
    'the name of the environment variable with its key; `TINKER_API_KEY` for the hosted service, none for a server of your own',
  ),
  server: setting(
    choice('tinker', 'skyrl'),
    'what it is: the hosted service (`tinker`), or a server of your own (`skyrl`, whichever it is); by its `url` when missing',
  ),
  base_model: setting(text(), 'what the server calls the model; the only one it has when missing'),
  loss_reduction: setting(
    choice('sum', 'row_mean', 'token_mean', 'sequence_mean'),
    'what the server makes of the losses of tokens: their sum, or the mean over rows, over tokens, or over rows of means over tokens. It is measured on a server of your own, and another value is refused then. Whatever it is, the gradient is the one that `aggregation` asks for',
  ),
  checkpoint_dir: setting(
    text(),
    'the folder where a server of your own writes its checkpoints, as the GPU worker sees it under the same path: for servers that send no weights (TuFT, twinkle). Files below it are read, and no others',
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
  const { base_model, loss_reduction, checkpoint_ttl, checkpoint_dir } = config.trainer;
  const at = tinkerServerOf(config);
  return {
    kind: 'tinker',
    ...at,
    baseModel: base_model ?? null,
    reduction: loss_reduction ?? null,
    ...present({ checkpointDir: checkpoint_dir }),
    checkpointTtlS: checkpoint_ttl ?? null,
  };
}
