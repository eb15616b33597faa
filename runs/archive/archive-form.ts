/**
 * An archive of a run is a tar: `archive.json`, the objects of the run below `run/`, and `SHA256SUMS` of all of them,
 * which comes last. So a cut archive is none, and `tar xf FILE && sha256sum -c SHA256SUMS` verifies one.
 */
export const headName = 'archive.json';
export const objectsPrefix = 'run/';
export const archiveSumsName = 'SHA256SUMS';

export interface ArchiveHead {
  readonly format: typeof archiveFormat;
  readonly version: typeof archiveVersion;
  /** The run's name. */
  readonly run: string;
}

export const archiveFormat = 'ratchet-run';
export const archiveVersion = 1;
