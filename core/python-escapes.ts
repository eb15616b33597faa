/** Characters of one-letter escapes in Python's texts, by the letter after the backslash (docs.python.org, lexical analysis 2.4.1.1). */
export const pythonEscapes: Readonly<Record<string, string>> = {
  '\n': '',
  '\\': '\\',
  "'": "'",
  '"': '"',
  a: '\u0007',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
};
