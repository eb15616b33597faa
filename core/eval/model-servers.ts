import type { Endpoint, Endpoints, ModelAccess } from './model-access.ts';
import type { EvaluatedServer } from './evaluation.ts';

/** The servers of a model, or the reason why they are unknown. */
type ModelServers =
  | { readonly ok: true; readonly model: string; readonly servers: readonly EvaluatedServer[] }
  | { readonly ok: false; readonly problem: string };

/** Addresses of known APIs and the variables of their keys, as in verifiers 0.3.1. Local servers need no key. */
const knownProviders: Readonly<
  Record<NonNullable<ModelAccess['provider']>, { readonly url: string; readonly key: string | null }>
> = {
  prime: { url: 'https://api.pinference.ai/api/v1', key: 'PRIME_API_KEY' },
  openrouter: { url: 'https://openrouter.ai/api/v1', key: 'OPENROUTER_API_KEY' },
  openai: { url: 'https://api.openai.com/v1', key: 'OPENAI_API_KEY' },
  // Its own API differs; at /v1 it also offers OpenAI's.
  anthropic: { url: 'https://api.anthropic.com/v1', key: 'ANTHROPIC_API_KEY' },
  minimax: { url: 'https://api.minimax.chat/v1', key: 'MINIMAX_API_KEY' },
  deepseek: { url: 'https://api.deepseek.com/v1', key: 'DEEPSEEK_API_KEY' },
  glm: { url: 'https://open.bigmodel.cn/api/paas/v4', key: 'GLM_API_KEY' },
  local: { url: 'http://localhost:8000/v1', key: null },
  vllm: { url: 'http://localhost:8000/v1', key: null },
};

/** Client types that are served by chat completions, the only API used here; the others are asked in that way too. */
const spoken: ReadonlySet<string> = new Set([
  'openai_chat_completions',
  'openai_chat_completions_token',
  'renderer',
  'nemorl_chat_completions',
]);

/**
 * Resolves in verifiers' order: an alias of the registry, overridden by a provider, overridden by a URL and the name of
 * a key. Without any of them it is Prime Inference if its key is set (`isSet`), else an error.
 */
export function serversOfModel(
  access: ModelAccess,
  registry: Endpoints | null,
  isSet: (variable: string) => boolean,
): ModelServers {
  const alias = access.endpointId ?? access.model ?? '';
  const replicas = registry?.endpoints.find(({ id }) => id === alias)?.replicas;
  const known = registry?.endpoints.map(({ id }) => id) ?? [];
  if (access.endpointId !== null && replicas === undefined) {
    const there = known.length === 0 ? 'there is no such file, or no alias in it' : `it has ${known.join(', ')}`;
    return refuse(`no endpoint "${access.endpointId}" in ${access.endpointsPath}: ${there}`);
  }
  const foreign = [access.clientType, ...(replicas ?? []).map(({ clientType }) => clientType)].find(
    (type) => type !== null && !spoken.has(type) && !(type === 'anthropic_messages'),
  );
  if (foreign != null) {
    return refuse(
      `the client type ${foreign} is not spoken here: expected chat completions (${[...spoken].join(', ')})`,
    );
  }
  if (access.clientType === 'anthropic_messages' && access.apiBaseUrl !== null) {
    return refuse('anthropic_messages is not spoken here; Anthropic answers chat completions as well: -p anthropic');
  }
  if (replicas !== undefined) return { ok: true, ...ofReplicas(access, replicas) };
  if (access.apiBaseUrl === null && access.provider === null) {
    if (!isSet('PRIME_API_KEY')) return refuse(nobodyNamed(alias, access.endpointsPath, known));
    return { ok: true, model: alias, servers: [serverOf(access, alias, knownProviders.prime)] };
  }
  const provider = access.provider === null ? null : knownProviders[access.provider];
  const url = access.apiBaseUrl ?? provider!.url;
  return { ok: true, model: alias, servers: [serverOf(access, alias, provider ?? { url, key: defaultKey(url) })] };
}

function refuse(problem: string): ModelServers {
  return { ok: false, problem };
}

function ofReplicas(
  access: ModelAccess,
  replicas: readonly Endpoint[],
): { readonly model: string; readonly servers: EvaluatedServer[] } {
  const first = replicas[0]!;
  const provider = access.provider === null ? null : knownProviders[access.provider];
  const moved = provider !== null || access.apiBaseUrl !== null;
  const own = moved ? [first] : replicas;
  return {
    model: first.model,
    servers: own.map(({ model, baseUrl, apiKeyVar, headers }) => ({
      model,
      baseUrl: access.apiBaseUrl ?? provider?.url ?? baseUrl,
      apiKeyVar: access.apiKeyVar ?? (provider === null ? apiKeyVar : provider.key),
      headers: { ...headers, ...access.headers },
    })),
  };
}

function serverOf(
  access: ModelAccess,
  model: string,
  { url, key }: { readonly url: string; readonly key: string | null },
): EvaluatedServer {
  return {
    model,
    baseUrl: access.apiBaseUrl ?? url,
    apiKeyVar: access.apiKeyVar ?? key,
    headers: access.headers,
  };
}

/**
 * Variable with the key of a known API; null for a server of this machine or the local network, and for an unknown one.
 */
export function defaultKey(url: string): string | null {
  const { host } = new URL(url);
  const known = Object.values(knownProviders).find((provider) => new URL(provider.url).host === host);
  return known?.key ?? null;
}

function nobodyNamed(alias: string, file: string, aliases: readonly string[]): string {
  const there = aliases.length === 0 ? `${file} has no aliases` : `${file} has ${aliases.join(', ')}`;
  const names = Object.keys(knownProviders).join(', ');
  return `no server is configured for model "${alias}": it is no alias (${there}), and PRIME_API_KEY, with which Prime Inference would be asked, is not set. Name a server, -b URL, or a provider, -p ${names}`;
}
