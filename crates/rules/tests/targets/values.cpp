// Values of C++ and its library.
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#ifdef __clang__
#define KEEP __attribute__((noinline, used))
#else
#define KEEP __attribute__((noipa, used))
#endif

namespace db {
enum class Mode { Read = 1, Write = 2 };
struct Base { int id; virtual ~Base() {} };
struct Row : Base { std::string name; std::vector<int> cells; };

KEEP int query(const std::string &sql, int n) { return (int)sql.size() + n; }
KEEP int by_value(std::string sql, std::string_view view, Mode mode) { return (int)(sql.size() + view.size()) + (int)mode; }
KEEP int list(const std::vector<int> &numbers, std::vector<double> floats) { return (int)(numbers.size() + floats.size()); }
KEEP int pointers(const std::unique_ptr<Row> &row, std::shared_ptr<Row> shared) { return row->id + (int)shared.use_count(); }
struct Named { std::string name; int id; };
KEEP int copied(Named named, int n) { return named.id + n + (int)named.name.size(); }
KEEP std::string result(int n) { return std::string(n, 'x'); }
struct Table {
    int rows = 7;
    std::string title = "a title that is longer than sixteen";
    KEEP int count(int more) const { return rows + more; }
};
template <class T> KEEP T twice(T value) { return value + value; }
}

KEEP void failing(int kind)
{
    if (kind == 0)
        throw std::runtime_error("no route to host");
    if (kind == 1)
        throw std::out_of_range("index 9");
    if (kind == 2)
        throw "a text";
    if (kind == 3)
        throw std::string("a string");
    throw kind;
}

int main()
{
    char byte;
    volatile long check = 0;
    if (read(0, &byte, 1) < 0)
        return 2;
    check += db::query("SELECT short", 3);
    check += db::query("SELECT something that is longer than the space inside", 300);
    check += db::by_value("hello", "a view", db::Mode::Write);
    check += db::list({ 1, 2, 3 }, { 0.5, 1.5 });
    auto row = std::make_unique<db::Row>();
    row->id = 41;
    row->name = "row";
    row->cells = { 9, 8 };
    auto shared = std::make_shared<db::Row>(*row);
    check += db::pointers(row, shared);
    check += db::copied({ "inside", 6 }, 8);
    check += db::result(20).size();
    db::Table table;
    check += table.count(5);
    check += db::twice(21) + (long)db::twice(1.25);
    for (int kind = 0; kind < 5; kind++) {
        try {
            failing(kind);
        } catch (...) {
            check = check + 1;
        }
    }
    return check == 12345;
}
