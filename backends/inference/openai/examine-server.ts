import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { ModelServer, type ServerAddress } from '../model-server.ts';
import { readFloatType } from '../vllm/vllm-routes.ts';
import { hasRawLogprobs } from './raw-logprobs.ts';

/** Findings about an OpenAI-compatible server, before a run uses it. null = unknown. */
export interface ServerReport {
  readonly url: string;
  /** Why it could not be asked; null if it answered. */
  readonly away: string | null;
  /** Models that it has loaded. */
  readonly models: readonly string[];
  /** Whether `/v1/completions` takes and gives token ids, which training needs. */
  readonly givesTokenIds: boolean | null;
  /** The reason, in its own words. */
  readonly why: string | null;
  /** Whether it has `/update_weights`. */
  readonly takesWeights: boolean | null;
  /** Whether it has the routes of vLLM for adapters, and for full weights (vLLM's or prime-rl's). */
  readonly takesAdapters: boolean | null;
  readonly takesFullWeights: boolean | null;
  /** The version that it reports. */
  readonly version: string | null;
  /** Float type of a vLLM that reports it: `float32`, `bfloat16`, … */
  readonly floatType: string | null;
  /** Whether its log probabilities are those before the temperature, as vLLM's are without `--logprobs-mode processed_logprobs`. */
  readonly logprobsAreRaw: boolean | null;
}

/** A person is waiting. */
const askMs = 5_000;

const Version = z.object({ version: z.string() });
const Models = z.object({ data: z.array(z.object({ id: z.string() })) });

/**
 * Examines a server: its models, and two tokens of the first of them. Weights are not touched: only the existence of
 * the route `/update_weights` is checked.
 */
export async function examineServer(
  address: ServerAddress,
  { isVllm = false }: { readonly isVllm?: boolean } = {},
): Promise<ServerReport> {
  const server = new ModelServer(address, { timeoutMs: askMs, provider: 'cpu' });
  const nothing = {
    models: [],
    givesTokenIds: null,
    why: null,
    takesWeights: null,
    takesAdapters: null,
    takesFullWeights: null,
    version: null,
    floatType: null,
    logprobsAreRaw: null,
  };
  try {
    await server.look();
    const listed = await server.get('/v1/models');
    const read = Models.safeParse(listed.body);
    const models = read.success ? read.data.data.map(({ id }) => id) : [];
    const has = async (route: string): Promise<boolean> => (await server.get(route)).status !== 404;
    const takesWeights = await has('/update_weights');
    const isTransfer = await has('/init_weight_transfer_engine'); // vLLM's own /update_weights is one end of such a one
    const takesFullWeights = (takesWeights && !isTransfer) || (await has('/collective_rpc'));
    const takesAdapters = await has('/v1/load_lora_adapter');
    const said = Version.safeParse((await server.get('/version')).body);
    const version = said.success ? said.data.version : null;
    const floatType = isVllm ? await readFloatType(server).catch(notTold) : null;
    const model = address.model ?? models[0];
    const tokens = model === undefined ? nothing : await askForTokens(server, model);
    return {
      ...nothing,
      ...tokens,
      url: server.root,
      away: null,
      models,
      takesWeights,
      takesAdapters,
      takesFullWeights,
      version,
      floatType,
    };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { ...nothing, url: server.root, away: error.message };
  } finally {
    server.close();
  }
}

/** It answers everything else, so only this is unknown. */
function notTold(error: unknown): null {
  if (error instanceof RatchetError) return null;
  throw error;
}

type Tokens = Pick<ServerReport, 'givesTokenIds' | 'why' | 'logprobsAreRaw'>;

async function askForTokens(server: ModelServer, model: string): Promise<Tokens> {
  try {
    return { givesTokenIds: true, why: null, logprobsAreRaw: await hasRawLogprobs(server, model) };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    // A server without this route reports a missing model.
    if (error.isRetryable && error.code !== 'VersionNotHeld') throw error;
    return { givesTokenIds: false, why: error.message, logprobsAreRaw: null };
  }
}
