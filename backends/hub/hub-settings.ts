import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import path from 'node:path';

/**
 * Address of the Hugging Face Hub, the local cache and the token, as huggingface_hub reads them from the environment.
 */
export interface HubSettings {
  /** Without a slash at its end. */
  readonly endpoint: string;
  /** The folder with `models--OWNER--NAME` in it. */
  readonly cache: string;
  /** No network requests. */
  readonly isOffline: boolean;
  readonly token: HubToken | null;
}

interface HubToken {
  readonly value: string;
  /** The variable or file that it came from. */
  readonly from: string;
}

type Environment = Readonly<NodeJS.ProcessEnv>;

const defaultEndpoint = 'https://huggingface.co';

/** The variables are HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN and HF_TOKEN_PATH, with their older names. */
export function hubSettings(environment: Environment = process.env, home: string = homedir()): HubSettings {
  const hubHome = homeOf(environment, home);
  const cache = firstOf(environment, 'HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE');
  return {
    endpoint: (firstOf(environment, 'HF_ENDPOINT') ?? defaultEndpoint).replace(/\/+$/, ''),
    cache: cache === undefined ? path.join(hubHome, 'hub') : path.resolve(expanded(cache, home)),
    isOffline: isOn(environment['HF_HUB_OFFLINE']) || isOn(environment['TRANSFORMERS_OFFLINE']),
    token: hubToken(environment, home),
  };
}

/** HF_TOKEN, else the file of `hf auth login`; null without either. */
export function hubToken(environment: Environment = process.env, home: string = homedir()): HubToken | null {
  for (const name of ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN']) {
    const value = environment[name]?.trim();
    if (value) return { value, from: name };
  }
  const named = firstOf(environment, 'HF_TOKEN_PATH');
  const file = named === undefined ? path.join(homeOf(environment, home), 'token') : expanded(named, home);
  try {
    const value = readFileSync(file, 'utf8').trim();
    return value === '' ? null : { value, from: file };
  } catch {
    return null; // no login on this machine
  }
}

function homeOf(environment: Environment, home: string): string {
  const named = firstOf(environment, 'HF_HOME');
  if (named !== undefined) return path.resolve(expanded(named, home));
  const caches = firstOf(environment, 'XDG_CACHE_HOME');
  return path.join(caches === undefined ? path.join(home, '.cache') : expanded(caches, home), 'huggingface');
}

function firstOf(environment: Environment, ...names: readonly string[]): string | undefined {
  return names.map((name) => environment[name]).find((value) => value !== undefined && value !== '');
}

function expanded(folder: string, home: string): string {
  return folder === '~' || folder.startsWith('~/') ? path.join(home, folder.slice(1)) : folder;
}

function isOn(value: string | undefined): boolean {
  return /^(?:1|on|yes|true)$/i.test(value ?? '');
}
