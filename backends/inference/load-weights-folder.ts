import { existsSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { requireOwnFiles } from '../../engine/model/model-repository.ts';
import type { ModelServer } from './model-server.ts';
import { VllmRoutes } from './vllm/vllm-routes.ts';

/** Loads a folder of weights that no run made into a running server: ours, prime-rl's, or a plain vLLM. */

interface LoadedFolder {
  /** Name that the server gets in requests from now on. */
  readonly model: string;
  /** Unloads an adapter; weights stay until others are loaded. */
  readonly unload: () => Promise<void>;
}

/**
 * Makes a server load a folder, an adapter under `name`. Throws Unsupported if it cannot, with the start options it
 * would need. Nothing else may use the server meanwhile: a folder of whole weights replaces its own.
 */
export async function loadWeightsFolder(server: ModelServer, folder: string, name: string): Promise<LoadedFolder> {
  await requireOwnFiles(folder);
  const routes = new VllmRoutes(server, 'auto');
  const has = async (route: string): Promise<boolean> => (await server.get(route)).status !== 404;
  const isAdapter = existsSync(path.join(folder, 'adapter_config.json'));
  if (isAdapter && (await has('/v1/load_lora_adapter'))) {
    await routes.loadAdapter(name, folder);
    return { model: name, unload: () => routes.unload(name) };
  }
  const unload = () => Promise.resolve();
  // vLLM's own /update_weights is one end of a transfer.
  if ((await has('/update_weights')) && !(await has('/init_weight_transfer_engine'))) {
    await server.post('/update_weights', { weight_dir: folder, name });
    const { base, names } = await routes.models();
    return { model: names.includes(name) ? name : base, unload };
  }
  if (isAdapter) throw cannot(server, 'adapters', 'VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora', folder);
  if (!(await has('/collective_rpc'))) throw cannot(server, 'weights', 'VLLM_SERVER_DEV_MODE=1', folder);
  await routes.exchangeWeights(folder, name);
  return { model: await routes.baseModel(), unload };
}

function cannot({ root }: ModelServer, what: string, how: string, folder: string): RatchetError {
  const message = `${root} cannot be given ${what} while it runs. Start vLLM with ${how}; or serve this folder by itself (vllm serve ${folder}) and type: npx ratchet-rl eval run ENV -m ${folder} -b ${root}/v1`;
  return new RatchetError('Unsupported', message);
}

/** The server's name of its initial model. Throws InferenceUnavailable if it names none. */
export async function startedWith(server: ModelServer): Promise<string> {
  return (await new VllmRoutes(server, 'auto').models()).base;
}
