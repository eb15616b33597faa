/** Keys from the environment, held by this process alone; null if the AWS chain provides them. */
interface StaticCredentials {
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly sessionToken?: string;
}

const names = { id: 'AWS_ACCESS_KEY_ID', secret: 'AWS_SECRET_ACCESS_KEY', token: 'AWS_SESSION_TOKEN' } as const;

let taken: StaticCredentials | null = null;

/**
 * Moves the store's keys out of `env`, so that users' code in this process, or in a child of it, does not find them
 * there. The rest of the AWS chain (profiles, roles, SSO) consists of names and files, and stays.
 */
export function takeStoreCredentials(env: NodeJS.ProcessEnv = process.env): void {
  const { [names.id]: accessKeyId, [names.secret]: secretAccessKey, [names.token]: sessionToken } = env;
  for (const name of Object.values(names)) delete env[name];
  if (!accessKeyId || !secretAccessKey) return;
  taken = { accessKeyId, secretAccessKey, ...(sessionToken ? { sessionToken } : {}) };
}

/** Credentials for an S3 client, as taken from the environment. */
export function storeCredentials(): StaticCredentials | null {
  return taken;
}
