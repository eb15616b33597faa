import { present } from '../../core/present.ts';
import { errorIn, wordsOfPage } from '../answer-words.ts';
import { RatchetError } from '../../core/errors.ts';
import { quoted } from '../../core/steering.ts';
import { withoutSecrets } from '../../config/toml/secrets.ts';
import type { Quantization } from '../../engine/index.ts';
import { answerJson } from './openai/answer-json.ts';
import { type HttpAnswer, type HttpCall, HttpClient, NoAnswer, UnreadAnswer } from './http-client.ts';
import { refusalOf, reportedRefusal, UnusableAnswer } from './openai/refusal.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';

/** Address of a server, and the headers of every request. Keys are named, never held. */
export interface ServerAddress {
  /** URL of its API, with or without `/v1`. */
  readonly url: string;
  /** Name of the environment variable with the key; null = no key is needed. */
  readonly apiKeyVar: string | null;
  readonly headers: Readonly<Record<string, string>>;
  /** Header → name of the environment variable with its value. */
  readonly headersFromEnv: Readonly<Record<string, string>>;
  /** The server's name of its model; null = the policy's name. */
  readonly model: string | null;
  /**
   * Whether this project's processes were started with it: it gets no request until it has proven that it has the
   * project's secret.
   */
  readonly isOwn?: boolean;
}

export interface ServerOptions {
  /** Timeout of one request, from the first byte sent to the last one received. */
  readonly timeoutMs: number;
  /** Its device, sent with the weights. */
  readonly provider: 'cpu' | 'cuda';
  /** Bits for sampling, sent with the weights; missing = as they are. */
  readonly quantize?: Quantization | undefined;
  /** Memory limit of the server in GB, sent with the weights; missing = the server's default. */
  readonly memoryGb?: number | undefined;
  /** Its name in refusals, with the setting that names it; missing = the inference server. */
  readonly what?: string | undefined;
  /** Advice if it does not answer; missing = {@link defaultRemedy}. */
  readonly remedy?: string | undefined;
  /** The project's secret; this process's by default. */
  readonly secret?: (() => string | null) | undefined;
}

interface PostOptions {
  readonly signal?: AbortSignal | undefined;
  /** Equal for the turns of one rollout. */
  readonly session?: string | undefined;
}

/** The request never reached the server: it had closed the idle connection. */
export class ConnectionStale extends RatchetError {
  constructor(message: string, cause: unknown) {
    super('InferenceUnavailable', message, { cause });
  }
}

/** Advice when a run's servers do not answer. */
export const defaultRemedy = 'Is it running? `ratchet dev` starts one; [inference] url names others.';

const probeTimeoutMs = 5_000;
/** Characters of an unusable answer in a message. */
const shownMax = 200;

/** One OpenAI-compatible server: its routes, and the meaning of its refusals. The pool schedules requests. */
export class ModelServer {
  readonly address: ServerAddress;
  /** URL without `/v1`, as shown to people. */
  readonly root: string;
  readonly #http: HttpClient;
  readonly #options: ServerOptions;
  readonly #loading = new Map<string, Promise<void>>();

  constructor(address: ServerAddress, options: ServerOptions) {
    this.address = address;
    this.root = serverRoot(address.url);
    const server = { what: options.what ?? 'The inference server', url: this.root, keys: serverKeysOf(address) };
    this.#http = new HttpClient(server, { isOwn: address.isOwn, secret: options.secret });
    this.#options = options;
  }

  /**
   * The JSON of a successful answer. Throws `VersionNotHeld` when the server does not know the model, `ServerBusy`,
   * `InferenceUnavailable`, `OutOfMemory`, `PromptTooLong` or `InferenceRejected`, with the server's own words.
   */
  async post(route: string, body: unknown, options: PostOptions = {}): Promise<unknown> {
    const answer = await this.#ask('POST', route, body, options);
    if (answer.status >= 300) throw this.#refusal(route, answer);
    const said = answerJson(answer.text);
    if (said !== undefined && errorIn(said) === null) return said;
    const { text } = this.#withoutSecrets(answer);
    // A gateway may report with status 200 that the server behind it failed.
    const reported = errorIn(answerJson(text));
    if (reported !== null) throw reportedRefusal(`${this.root}${route}`, answer, reported);
    throw new UnusableAnswer(
      `${this.root}${route} answered ${answer.status} with what is not JSON: ${quoted(wordsOfPage(text), shownMax)}. Is it an inference server, and the whole of its answer?`,
    );
  }

  /** Loads a version: idempotent, and once for concurrent callers. */
  async load(policy: ServedPolicy): Promise<void> {
    const { name, version, folder, templateTime } = policy;
    const loaded = `${name}@${version.digest}`;
    const known = this.#loading.get(loaded);
    if (known) return known;
    const rendering = templateTime === undefined ? {} : { template_time: templateTime };
    const { digest, sums } = version;
    // A teacher's folder has no list of its files.
    const files = { weight_dir: folder, digest, ...present({ sums: sums.sha256 || undefined }) };
    const loading = this.#load({ name, ...files, ...rendering, ...this.#how() });
    this.#loading.set(loaded, loading);
    try {
      await loading;
    } finally {
      this.#loading.delete(loaded);
    }
  }

  /** Loads again a version that the server claims to hold but samples wrongly. */
  reload(policy: ServedPolicy): Promise<void> {
    return this.load(policy);
  }

  /**
   * Keeps a version there. `gone` if it does not hold it, `single` if it has no such feature, `full` if it has no room.
   */
  async hold(name: string, holder: string, seconds: number): Promise<'held' | 'gone' | 'full' | 'single'> {
    const route = '/hold_version';
    const answer = await this.#ask('POST', route, { name, holder, seconds }, {});
    if (answer.status < 300) return 'held';
    if (answer.status === 404 || answer.status === 405) return 'single';
    if (answer.status === 409) return 'gone';
    if (answer.status === 429) return 'full';
    throw this.#refusal(route, answer);
  }

  async release(name: string, holder: string): Promise<void> {
    await this.#ask('POST', '/release_version', { name, holder }, {});
  }

  /** Forgets what it was given for a run that has ended. Most servers forget it by themselves. */
  leave(_run: string): Promise<void> {
    return Promise.resolve();
  }

  /** Whether it answers at all; any answer counts unless it reports that it cannot serve. */
  async probe(): Promise<boolean> {
    try {
      return (await this.#ask('GET', '/health', undefined, { timeoutMs: probeTimeoutMs })).status < 500;
    } catch (error) {
      if (error instanceof RatchetError && error.isRetryable) return false;
      throw error;
    }
  }

  /** Any answer's status and JSON. Throws `InferenceUnavailable` without one. */
  async get(route: string): Promise<{ readonly status: number; readonly body: unknown }> {
    const { status, text } = await this.#ask('GET', route, undefined, {});
    return { status, body: answerJson(text) };
  }

  /** The server's name of a version. Throws `VersionNotHeld` if it is known beforehand to hold another one. */
  modelFor(policy: ServedPolicy): Promise<string> {
    return Promise.resolve(policy.name);
  }

  /** Any answer's status and JSON. Throws `InferenceUnavailable` without one. */
  async send(
    method: HttpCall['method'],
    route: string,
    body?: unknown,
    options: PostOptions & { readonly timeoutMs?: number } = {},
  ): Promise<HttpAnswer & { readonly json: unknown }> {
    const answer = await this.#ask(method, route, body, options);
    return { ...answer, json: answerJson(answer.text) };
  }

  /** The error for a refusal, in the server's words. */
  refusal(route: string, answer: HttpAnswer): RatchetError {
    return this.#refusal(route, answer);
  }

  /** Throws the reason why it cannot be asked, for people; a missing or refused key included. */
  async look(): Promise<void> {
    const { timeoutMs } = this.#options;
    const ask = async (route: string): Promise<void> => {
      const answer = await this.#ask('GET', route, undefined, { timeoutMs });
      if (answer.status >= 500 || answer.status === 401 || answer.status === 403) throw this.#refusal(route, answer);
    };
    await ask('/health');
    await ask('/v1/models');
  }

  close(): void {
    this.#http.close();
  }

  async #load(body: Readonly<Record<string, unknown>>): Promise<void> {
    const route = '/update_weights';
    const answer = await this.#ask('POST', route, body, {});
    if (answer.status === 404 || answer.status === 405) {
      throw new RatchetError(
        'Unsupported',
        `${this.root} cannot be given weights (${route} answered ${answer.status}): it keeps sampling from those it started with, so no run can train with it. Use it for evaluations; for training name Ratchet's policy servers in [inference], or none.`,
      );
    }
    if (answer.status === 403 && answer.text.includes('allowed roots')) {
      const folder = String(body['weight_dir']);
      throw new RatchetError(
        'ConfigInvalid',
        `The policy server at ${this.root} was not started with the folder ${folder}, and loads no weights from elsewhere. \`ratchet train\` starts one that does, where none runs yet; for one that runs, end its \`ratchet dev\` and start it with that folder beside the others, or with the folder of its runs, which will have the next versions, too: npx ratchet-rl dev --weights outputs ${folder}`,
        { cause: this.#refusal(route, answer) },
      );
    }
    if (answer.status >= 300) throw this.#refusal(route, answer);
  }

  #how(): { provider?: 'cuda'; quantize?: Quantization; memory_gb?: number } {
    const { provider, quantize, memoryGb } = this.#options;
    return {
      ...present({ provider: provider === 'cpu' ? undefined : provider, quantize, memory_gb: memoryGb }),
    };
  }

  async #ask(
    method: HttpCall['method'],
    route: string,
    body: unknown,
    { signal, session, timeoutMs = this.#options.timeoutMs }: PostOptions & { readonly timeoutMs?: number },
  ): Promise<HttpAnswer> {
    const headers = () => ({ ...this.#headers(), ...present({ 'x-session-id': session }) });
    try {
      return await this.#http.ask({ method, route, body, headers, signal, timeoutMs });
    } catch (error) {
      if (isUnsendable(error)) {
        throw new RatchetError(
          'ConfigInvalid',
          `The inference server at ${this.root} cannot be asked: ${error.message}. Names of headers are letters, digits and "-"; values are one line of ASCII, also those in environment variables (a key with a line break at its end?).`,
        );
      }
      if (error instanceof UnreadAnswer) {
        const message = `${this.root}${route}: ${error.message}.`;
        throw error.isBroken
          ? new UnusableAnswer(message)
          : new RatchetError('InferenceRejected', message, { cause: error });
      }
      if (!(error instanceof NoAnswer)) throw error;
      const message = `The inference server at ${this.root} does not answer ${route}: ${error.message}. ${this.#options.remedy ?? defaultRemedy}`;
      if (error.isStale) throw new ConnectionStale(message, error);
      throw new RatchetError('InferenceUnavailable', message, { cause: error });
    }
  }

  /** Looked up for each request, so that a worker holds no key of its own. */
  #headers(): Record<string, string> {
    const { apiKeyVar, headers, headersFromEnv } = this.address;
    return {
      ...headers,
      ...Object.fromEntries(Object.entries(headersFromEnv).map(([name, variable]) => [name, this.#variable(variable)])),
      ...present({ authorization: apiKeyVar === null ? undefined : `Bearer ${this.#variable(apiKeyVar)}` }),
    };
  }

  /** The server's words without our secrets: some repeat the key that they refuse. */
  #refusal(route: string, answer: HttpAnswer): RatchetError {
    const { apiKeyVar } = this.address;
    const asked =
      apiKeyVar === null
        ? 'it was asked without a key: api_key_var names the variable that has one'
        : `the key in ${apiKeyVar} was sent`;
    const isAboutKey = answer.status === 401 || answer.status === 403;
    return refusalOf(`${this.root}${route}`, this.#withoutSecrets(answer), isAboutKey ? ` (${asked})` : '');
  }

  #withoutSecrets(answer: HttpAnswer): HttpAnswer {
    const secrets = serverKeysOf(this.address).flatMap((name) => process.env[name] || []);
    return { ...answer, text: withoutSecrets(answer.text, secrets) };
  }

  #variable(name: string): string {
    const value = process.env[name];
    if (value !== undefined && value !== '') return value;
    throw new RatchetError(
      'ConfigInvalid',
      `The inference server at ${this.root} asks for a key in the environment variable ${name}, which is not set here. Set it where the workers are started: \`ratchet train\` and \`ratchet eval run\` hand on what is named to them, \`ratchet dev\` what begins with RATCHET_.`,
    );
  }
}

/** Environment variables whose values a server receives. */
export function serverKeysOf({
  apiKeyVar,
  headersFromEnv = {},
}: Pick<ServerAddress, 'apiKeyVar'> & Partial<Pick<ServerAddress, 'headersFromEnv'>>): string[] {
  return [...(apiKeyVar === null ? [] : [apiKeyVar]), ...Object.values(headersFromEnv)];
}

/** Node refuses a header; its error names the header, not its value. */
function isUnsendable(error: unknown): error is TypeError {
  const { code } = error as { readonly code?: unknown };
  return error instanceof TypeError && (code === 'ERR_INVALID_CHAR' || code === 'ERR_INVALID_HTTP_TOKEN');
}

/** A base URL without `/v1`. */
export function serverRoot(url: string): string {
  return url.replace(/(?<!\/)\/+$/, '').replace(/\/v1$/, '');
}
