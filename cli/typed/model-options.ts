/** Options that `ratchet eval run` and `ratchet gepa run` share: which model is asked, on what environment, and how. */
export interface ModelOptions {
  readonly envArgs?: string;
  readonly extraEnvKwargs?: string;
  readonly passEnv?: string;
  readonly envDirPath?: string;
  readonly endpointsPath?: string;
  readonly provider?: string;
  readonly model?: string;
  readonly apiBaseUrl?: string;
  readonly apiKeyVar?: string;
  readonly maxConcurrent?: string;
  readonly maxTokens?: string;
  readonly temperature?: string;
  readonly samplingArgs?: string;
  readonly builtin?: boolean;
  readonly fresh?: boolean;
  readonly json?: boolean;
  readonly dryRun?: boolean;
}
