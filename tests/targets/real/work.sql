CREATE TABLE item(id INTEGER PRIMARY KEY, kind INTEGER, name TEXT, price REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
INSERT INTO item SELECT i, i % 17, 'item-' || (i * 7919 % 1000), i * 0.25 FROM n;
CREATE INDEX item_kind ON item(kind, price);
SELECT kind, count(*), round(sum(price), 2), max(name) FROM item GROUP BY kind ORDER BY 3 DESC;
SELECT a.name, b.id FROM item a JOIN item b ON a.kind = b.kind AND b.id = a.id + 17 WHERE a.id < 40 ORDER BY b.id DESC LIMIT 10;
UPDATE item SET price = price * 2 WHERE kind IN (SELECT kind FROM item GROUP BY kind HAVING avg(price) > 375);
DELETE FROM item WHERE name LIKE '%9';
SELECT count(*), round(total(price), 2), group_concat(DISTINCT kind) FROM item;
DROP TABLE item;
