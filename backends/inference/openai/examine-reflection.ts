import { RatchetError } from '../../../core/errors.ts';
import type { PromptBranchSpec } from '../../../config/settings/prompt-branches.ts';
import { ModelServer } from '../model-server.ts';

/** Findings about the server that rewrites prompts (`[gepa]`), before a run uses it. */
export interface ReflectionReport {
  readonly url: string;
  readonly model: string;
  /** The variable with its key, if unset here: then it is not asked. */
  readonly missingKey: string | null;
  /** Why it could not be asked; null if it answered, or was not asked. */
  readonly away: string | null;
  /** Whether it lists the model; null if it does not report that. */
  readonly hasModel: boolean | null;
}

/** A person is waiting. */
const askMs = 5_000;

/** Lists its models; nothing is generated. */
export async function examineReflection(
  { url, apiKeyVar, reflectionModel: model }: PromptBranchSpec,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): Promise<ReflectionReport> {
  const nothing = { url, model, missingKey: null, away: null, hasModel: null };
  if (apiKeyVar !== null && (environment[apiKeyVar] ?? '') === '') return { ...nothing, missingKey: apiKeyVar };
  const address = { url, apiKeyVar, headers: {}, headersFromEnv: {}, model };
  const remedy = 'Is it running, and is that its address?';
  const server = new ModelServer(address, { timeoutMs: askMs, provider: 'cpu', remedy });
  try {
    await server.look();
    const { body } = await server.get('/v1/models');
    const listed = (body as { data?: unknown } | undefined)?.data;
    const names = Array.isArray(listed) ? listed.map((one) => (one as { id?: unknown } | null)?.id) : [];
    return { ...nothing, hasModel: names.length === 0 ? null : names.includes(model) };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { ...nothing, away: error.message };
  } finally {
    server.close();
  }
}
