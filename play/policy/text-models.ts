import type { EvaluatedModel } from '../../core/eval/evaluation.ts';
import { RatchetError } from '../../core/errors.ts';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { environments as ofThisProcess, type Environments } from '../../backends/environments/index.ts';
import type { Dataset, Environment } from '../../backends/environments/types.ts';
import { requireTextOf, unlikeText } from '../../backends/environments/unlike-text.ts';
import type { EndpointServer } from '../../backends/inference/index.ts';
import { ModelServer } from '../../backends/inference/model-server.ts';

/** Limit for this question: a server that does not answer it gets the pictures. */
const askedMsMax = 10_000;

/** Refuses an environment with pictures for a text model, before any request is sent. */
export async function requireReadable(name: string, dataset: Dataset, model: EvaluatedModel): Promise<void> {
  if (unlikeText(dataset) === null || !(await readsTextAlone(model))) return;
  requireTextOf(name, dataset, model.model);
}

/** The environments of a search, in its order. */
export async function openReadable(
  environments: Environments | undefined,
  { environments: entries, model }: Pick<PromptSearchInput, 'environments' | 'model'>,
): Promise<Environment[]> {
  const opened = await Promise.all(entries.map((entry) => (environments ?? ofThisProcess).open(entry)));
  for (const [i, { dataset }] of opened.entries()) await requireReadable(entries[i]!.name, dataset, model);
  return opened;
}

/** Versions of a run get text tokens only; among servers, Ratchet's own engine reads text only. */
async function readsTextAlone(model: EvaluatedModel): Promise<boolean> {
  if (model.kind === 'version') return true;
  const own = await Promise.all(model.servers.map(isOwnEngine));
  return own.some(Boolean);
}

/** Read from the server's list of models. */
async function isOwnEngine({ baseUrl: url, apiKeyVar, headers, model }: EndpointServer): Promise<boolean> {
  const address = { url, apiKeyVar, headers, headersFromEnv: {}, model: null };
  const server = new ModelServer(address, { timeoutMs: askedMsMax, provider: 'cpu' });
  try {
    const { body } = await server.get('/v1/models');
    const listed = (body as { data?: unknown } | null)?.data;
    return (
      Array.isArray(listed) &&
      listed.some((one: { id?: unknown; owned_by?: unknown } | null) => one?.id === model && one.owned_by === 'ratchet')
    );
  } catch (error) {
    if (error instanceof RatchetError) return false;
    throw error;
  } finally {
    server.close();
  }
}
